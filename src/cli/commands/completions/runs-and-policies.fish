# Completes the ids of runs and the names of policies, for which the script asks guard.
complete -c guard -s p -l policy -r -a '(guard __complete policies 2>/dev/null)'
