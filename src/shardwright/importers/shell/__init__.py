"""Launch scripts, read as bash would run them, without running anything.

* `read`: a script as the commands that it starts, and the walk through it
* `branching`: branches, loops and their conditions, `[ … ]` and `[[ … ]]`
* `programs`: functions, builtins, other scripts, programs, with their assignments and redirections
* `parser`: text as commands, blanks and here-documents
* `syntax`: commands as trees, and in words
* `words`: words as trees, and where quotes and brackets close
* `expansion`: what words become, and where text is split into words, braces, patterns
* `arithmetic`: `$((…))`
* `builtins`: commands of the shell itself, and programs that only turn text into text
* `wrappers`: programs that start other programs, and what Slurm tells a job
* `state`: what a shell knows on the way, who walks, and the ends that end others
* `unknown`: text of which a part is not known
"""
