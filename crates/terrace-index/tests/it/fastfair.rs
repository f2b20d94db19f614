//! What is particular to the FAST&FAIR tree.
