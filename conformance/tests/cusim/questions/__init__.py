"""Questions to a CUDA driver: what its documentation leaves open, and what the simulator and this library both
assume.

    python -m conformance.tests.cusim.questions

prints a line for each: question, answer. `answers.tsv` has the simulator's answers, and `test_questions.py` holds it
to them. On a machine with a GPU, `make gpu PARTS=questions` keeps that driver's answers, and prints where the two
differ. No answer of the simulator is evidence about a GPU.
"""
