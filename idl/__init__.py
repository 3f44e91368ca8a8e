"""The program's interface description (IDL) and the codec that reads and writes the program's bytes."""
