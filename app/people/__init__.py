"""People: who may sign in to the dashboard, by passkey or by the company's OpenID Connect; others invited them."""
