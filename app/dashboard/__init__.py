"""The dashboard: pages for people over the use cases of the capabilities, in process.

Each page is a function declared by `page` or `action` of `app/dashboard/pages.py`, with a template in `templates`.
"""
