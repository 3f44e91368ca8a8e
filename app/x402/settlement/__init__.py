"""Settlement paths of paid requests: by the program, or out of an allowance. They know no protocol."""
