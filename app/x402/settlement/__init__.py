"""Settlement paths of paid requests: by the program, or out of an allowance.

The paths do not depend on the protocol of the request.
"""
