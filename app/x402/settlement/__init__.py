"""Settlement paths of paid requests: by the program, or out of an allowance. They do not depend on the protocol."""
