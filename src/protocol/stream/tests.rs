//! The decision, against an oracle of its own.
