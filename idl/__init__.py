"""The program's interface description, and the codec that reads and writes the program's bytes."""
