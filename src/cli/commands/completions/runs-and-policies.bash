# Completes the ids of runs and the names of policies, for which the script asks guard.
_guard_with_values() {
    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" words=() word
    case "$previous" in
        -p|--policy)
            COMPREPLY=($(compgen -W "$(guard __complete policies 2>/dev/null)" -- "$current"))
            [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- "$current"))
            return 0
            ;;
    esac
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ "$word" == -* ]] || words+=("$word")
    done
    case "${words[*]:0:2}" in
        {commands})
            if [[ "$current" != -* ]]; then
                COMPREPLY=($(compgen -W "$(guard __complete runs 2>/dev/null)" -- "$current"))
                [ ${#COMPREPLY[@]} -eq 0 ] || return 0
            fi
            ;;
    esac
    _guard "$@"
}

complete -F _guard_with_values -o nosort -o bashdefault -o default guard 2>/dev/null ||
    complete -F _guard_with_values -o bashdefault -o default guard
