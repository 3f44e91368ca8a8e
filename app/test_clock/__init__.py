"""The test clock: moves the embedded chain's time forward, so that limits and deadlines can be tried in a second."""
