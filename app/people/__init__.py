"""People who sign in to the dashboard, by passkey or OpenID Connect."""
