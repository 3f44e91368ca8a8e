"""One file per revision of the schema, numbered; a released one never changes and refers to no table of `app.store`."""
