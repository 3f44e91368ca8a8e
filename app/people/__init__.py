"""People: they sign in to the dashboard by passkey, in the organisation that invited them."""
