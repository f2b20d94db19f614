//! Bringing back what a damaged table still holds.
