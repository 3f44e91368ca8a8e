"""The application, the command line, and how a service starts and stops."""
