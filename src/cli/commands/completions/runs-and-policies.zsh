# Completes the ids of runs and the names of policies, for which the script asks guard.
_guard_runs() {
    local -a runs
    runs=(${(f)"$(guard __complete runs 2>/dev/null)"})
    compadd -V runs -a runs
}

_guard_policies() {
    local -a policies
    policies=(${(f)"$(guard __complete policies 2>/dev/null)"})
    compadd -a policies
    _files
}

