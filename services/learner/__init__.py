"""The student: graded groups in, new weights out. The only service that knows an algorithm."""
