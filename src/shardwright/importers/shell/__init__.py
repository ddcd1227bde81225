"""Launch scripts, read as bash would run them, without running anything.

* `read`: a script as the commands that it starts
* `interpreter`: the walk through a script
* `walker`: as the rules for each kind of command see it, and the ends that end others
* `branching`: branches and loops
* `programs`: functions, builtins, other scripts, programs
* `parser`: text as commands
* `simple`: those that hold no others, blanks and here-documents
* `syntax`: commands as trees, and in words
* `words`: words as trees
* `brackets`: where quotes and brackets close
* `expansion`: what words become
* `splitting`: where text is split into words, braces, patterns
* `assignment`: assignments
* `arithmetic`: `$((…))`
* `conditions`: `[ … ]` and `[[ … ]]`
* `redirection`: input, and files that are written
* `builtins`: commands of the shell itself
* `filters`: programs that only turn text into text
* `slurm`: what Slurm tells a job
* `wrappers`: programs that start other programs
* `state`: what a shell knows on the way
* `unknown`: text of which a part is not known
"""
