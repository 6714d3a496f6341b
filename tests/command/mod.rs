mod bad_input;
mod git;
mod real_bash;
mod real_git;
