"""One numbered file per revision of the schema. A released file never changes, and uses no table of `app.store`."""
