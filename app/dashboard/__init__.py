"""The dashboard: pages for people, built on the use cases of the capabilities.

A function declared by `page` shows a page, usually with a template in `templates`. A function declared by `action`
carries out a form. Both are in `app/dashboard/pages.py`.
"""
