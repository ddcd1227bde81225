"""Launch scripts, read as bash would run them, without running anything.

* `read`: a script as the commands that it starts
* `interpreter`: the walk through a script
* `walker`: as the rules for each kind of command see it
* `branching`: `&&`, `||`, `if`, `case`
* `loops`: `while`, `for`
* `programs`: functions, builtins, other scripts, programs
* `parser`: text as commands
* `simple`: those that hold no others
* `lexer`: blanks, here-documents and operators
* `syntax`: commands as trees
* `words`: words as trees
* `brackets`: where quotes and brackets close
* `expansion`: what words become
* `splitting`: where text is split into words
* `patterns`: patterns of file names
* `assignment`: assignments
* `arithmetic`: `$((…))`
* `conditions`: `[ … ]` and `[[ … ]]`
* `redirection`: input, and files that are written
* `builtins`: commands of the shell itself
* `filters`: programs that only turn text into text
* `slurm`: what Slurm tells a job
* `wrappers`: programs that start other programs
* `description`: conditions, as a person would write them
* `state`: what a shell knows on the way
* `control`: ends of loops, functions and scripts
* `unknown`: text of which a part is not known
"""
