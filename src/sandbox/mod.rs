//! A plan → Landlock rules, seccomp programs and mounts; and the probe that says what this kernel can do.
