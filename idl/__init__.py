"""The program's interface description and the codec that reads and writes its bytes."""
