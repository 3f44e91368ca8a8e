"""The dashboard: pages for people, built on the use cases of the capabilities.

Each page is a function declared by `page` or `action` of `app/dashboard/pages.py`, with a template in `templates`.
"""
