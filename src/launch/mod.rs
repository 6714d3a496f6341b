//! A plan → a running process tree → a result. The only room that spawns processes.
