# Scripts for test_shell.py, with an empty line between each and the next.

let X=3*4; torchrun $X

let "X = 2 ** 10" Y=5; torchrun $X $Y

X=5; ((X++)); ((X+=2)); torchrun $X

((X = 7 > 3 ? 10 : 20)); torchrun $X

X=$((0x1F + 017 + 2#101)); torchrun $X

X=$((-7 / 2)) Y=$((-7 % 3)); torchrun $X $Y

X=$((1 << 20 | 3)); torchrun $X
X=$((~5)) Y=$((!0)); torchrun $X $Y

for ((i=0; i<4; i++)); do X="$X $i"; done; torchrun $X

for ((i=0,j=10; i<3; i++, j--)); do X+=" $i:$j"; done; torchrun $X

declare -A M=([a]=1 [b]="two words"); M[c]=3; torchrun "${M[a]}" "${M[b]}" "${#M[@]}"

A=(1 2 3); A[5]=9; A+=(10); torchrun "${A[@]}" "${#A[@]}" "${!A[@]}"

A=(a b c d e); torchrun "${A[@]:1:3}" "${A[-1]}" "${A[@]: -2}"

X=abcdef; torchrun "${X:2:3}" "${X: -2}" "${X:1}" "${X:0:-1}"

X=path/to/file.tar.gz; torchrun "${X##*/}" "${X#*/}" "${X%.*}" "${X%%.*}" "${X/to/from}" "${X//t/T}"

X=Hello; torchrun "${X^^}" "${X,,}" "${X^}" "${X,}"

X=; torchrun "${X:-d}" "${X-d}" "${X:+s}" "${X+s}" "${Y:=new}" $Y

printf -v X '%05.2f|%d' 3.14159 42; torchrun "$X"

X=$(printf '%s,' a b c); torchrun "${X%,}"

X=$(printf "%03d" 7); torchrun $X

IFS=, read -ra P <<< "a,b,c"; torchrun "${P[@]}" "${#P[@]}"

IFS=: read a b c <<< "1:2:3:4"; torchrun $a $b $c

read -r X Y <<< "one two three"; torchrun "$X" "$Y"

mapfile -t L <<< $'a\nb c'; torchrun "${L[@]}"

set -- a b c; shift; torchrun "$@" $#

set -- --x 1 --y 2; while [[ $# -gt 0 ]]; do case $1 in --x) X=$2; shift 2;; --y) Y=$2; shift 2;; esac; done; torchrun $X $Y

while getopts "a:b" o -a 5 -b; do case $o in a) A=$OPTARG;; b) B=yes;; esac; done; torchrun $A $B

set -- -n 3 -v; while getopts ":n:v" o; do case $o in n) N=$OPTARG;; v) V=1;; esac; done; shift $((OPTIND-1)); torchrun $N $V $#

f() { local X=$1; echo "got $X"; return 3; }; R=$(f hi); torchrun "$R"

f() { local -i n=$1; ((n*=2)); echo $n; }; torchrun $(f 21)

X=1; f() { local X=2; g; }; g() { Y=$X; }; f; torchrun $X $Y

X=$(echo a,b,c | tr ',' '\n' | wc -l); torchrun $X

X=$(echo one two | cut -d' ' -f2); torchrun $X

X=$(seq 1 2 7); torchrun $X

X=$(seq -s, 3); torchrun $X

X=$(echo "3 + 4 * 2" | bc); torchrun $X

X=$(expr 3 + 4); Y=$(expr 7 \* 6); torchrun $X $Y

X=$(basename /a/b/c.sh .sh) Y=$(dirname /a/b/c.sh); torchrun $X $Y

X=$(echo abc | sed 's/b/X/'); torchrun $X

X=$(printf '3\n1\n2\n' | sort | head -n 1); torchrun $X

X=$(printf '3\n1\n2\n' | tail -n1); torchrun $X

X=10; if (( X > 5 && X < 20 )); then Y=in; else Y=out; fi; torchrun $Y

X=abc; if [[ $X == a* && $X != *z ]]; then Y=m; fi; torchrun $Y

X=v12; if [[ $X =~ ^v([0-9]+)$ ]]; then Y=${BASH_REMATCH[1]}; fi; torchrun $Y

if [ "a" = "a" -a 3 -gt 2 ]; then Y=1; fi; torchrun $Y

if ! [ -z "x" ]; then Y=1; fi; torchrun $Y

X=b; case $X in a|b) Y=1;;& b) Y=${Y}2;; *) Y=3;; esac; torchrun $Y

X=a; case $X in a) Y=1;& b) Y=${Y}2;; *) Y=3;; esac; torchrun $Y

torchrun {1..3} x{a,b}y {01..03} {a..c}

torchrun a{b,{c,d}}e

X='a   b'; torchrun $X "$X"

X="a b"; Y=$X; torchrun "$Y" $Y

X=5; Y=X; torchrun ${!Y}

ARGS="--a 1 --b 'x y'"; eval "torchrun $ARGS"

ARGS=(--a "x y"); torchrun "${ARGS[@]}" ${ARGS[*]}

torchrun $'a\tb' $"hi" 'it'\''s'

cat > f.json <<EOF
{"x": $((2+3))}
EOF
torchrun $(cat f.json)

cat <<'EOF' > g
$HOME
EOF
torchrun "$(cat g)"

X=`echo back\`echo tick\``; torchrun $X

i=0; until [ $i -ge 3 ]; do i=$((i+1)); done; torchrun $i

for x in a b c d; do [ $x = b ] && continue; [ $x = d ] && break; Y="$Y$x"; done; torchrun $Y

for i in 1 2; do for j in 1 2 3; do [ $j = 2 ] && continue 2; Y="$Y$i$j "; done; done; torchrun $Y

for i in 1 2 3; do for j in 1 2 3; do [ $j = 2 ] && break 2; Y="$Y$i$j "; done; done; torchrun $Y

true && X=1 || X=2; false && Y=1 || Y=2; torchrun $X $Y

X=1; (X=2; torchrun $X); torchrun $X

X=1; { X=2; }; torchrun $X

echo hi | { read X; torchrun $X; }

X=08; Y=$((10#$X + 1)); torchrun $Y

X=1e-4; torchrun --lr $X

X=(); [ ${#X[@]} -eq 0 ] && Y=empty; torchrun $Y

unset X; [ -v X ] && Y=set || Y=unset; torchrun $Y

A=(x y); unset 'A[0]'; torchrun "${A[@]}"

X=foo; X+=bar; torchrun $X

export A=1 B="2 3"; torchrun $A "$B"

readonly C=5; torchrun $C

X="--a  1"; torchrun ${X}

N=0; while (( N < 3 )); do (( N += 1 )); done; torchrun $N

X=$((${Y:-4} * 2)); torchrun $X

torchrun ${X:-$(echo def)}

X=a-b-c; torchrun ${X//-/ }

X=/a/b/; torchrun ${X%/}

torchrun "$((3>2))" "$((3==2))"

X="a b c"; Y=($X); torchrun ${#Y[@]} ${Y[1]}

A=("a b" c); B=("${A[@]}" d); torchrun ${#B[@]} "${B[0]}"

A=(1 2 3); X=$(IFS=,; echo "${A[*]}"); torchrun $X

torchrun a # comment

torchrun a#b "c # d"

if [[ -n "$UNSET_VAR_Q" ]]; then X=1; else X=2; fi; torchrun $X

X=${UNSET_VAR_Q:-5}; X=${X:-6}; torchrun $X

test 3 -lt 4 && X=y; torchrun $X

[[ 3 -lt 4 && ( 1 -eq 2 || 2 -eq 2 ) ]] && X=y; torchrun $X

[[ "abc" < "abd" ]] && X=y; torchrun $X

X=abc; [[ $X == "a*" ]] || Y=no; torchrun $Y

command -v bash >/dev/null && :; torchrun ok

f() { torchrun "$@"; }; f a "b c"

f() { echo $#; }; torchrun $(f "a b" c)

X=$(( (1+2)*3 )); torchrun $X

X=$((1,2)); torchrun $X

x=3; y=$((x*x+x)); torchrun $y

A=(3 4); torchrun $((A[0]*A[1])) $((${A[0]}+1))

i=1; A=(a b c); torchrun ${A[i]} ${A[$i+1]} ${A[$((i-1))]}

X=$(tr a-z A-Z <<< hello); torchrun $X
X=$(tr '[:lower:]' '[:upper:]' <<< hello); torchrun $X

X="a\"b"; torchrun "$X"

d

torchrun a | tee log.txt

A=1 torchrun $A

OMP=4 torchrun a b

if [ -d /nonexistent_dir_q ]; then X=1; fi; torchrun a

torchrun "${@:-none}"

A=(x y); torchrun "${A[@]/#/--}" "${A[@]^^}" "${A[@]%y}"

X="x=1,y=2"; IFS=',' ; for p in $X; do Y+="[$p]"; done; unset IFS; torchrun "$Y"

X=abc; torchrun ${#X} ${X:$((1)):1}

X=(a b c); for i in "${!X[@]}"; do Y+="$i=${X[$i]} "; done; torchrun $Y

X=file.txt; [[ $X == *.txt ]] && torchrun txt

X=5; [ "$X" -eq 5 ] && [ "$X" != 6 ] && torchrun five

declare X=1 Y; torchrun $X

local_x() { declare -g G=7; }; local_x; torchrun $G

f() { X=inner; }; f; torchrun $X

: ${V:=dflt}; torchrun $V

select_=1; torchrun $select_

coproc_=1; torchrun $coproc_

if true; then torchrun a; fi

x=$(($(echo 3)+1)); torchrun $x

torchrun --x=${A:-1}${B:+2}
