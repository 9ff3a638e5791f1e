#!/bin/bash
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --mem-per-gpu=62G
#SBATCH --time=120
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --constraint="scratch"
#SBATCH --job-name=act-NAME
#SBATCH --output=.aorta/jobs/act-NAME/output-0.txt

cd -- /project || exit 1
job=.aorta/jobs/act-NAME
task=0
# A job that was forgotten, or is known to have ended, does nothing when it begins after all.
if [ ! -e "$job/job.json" ] || [ -e "$job/over-$task" ]; then exit 0; fi
if [ "${SLURM_RESTART_COUNT:-0}" -gt 10 ]; then
    echo "restarted $SLURM_RESTART_COUNT times: not started again" >&2
    exit 3
fi

export ACTION_CLUSTER=here
export ACTION_NAME=act
export ACTION_WORKSPACE_PATH=workspace
export ACTION_PROCESSES=4
export ACTION_WALLTIME_IN_MINUTES=120
export ACTION_GPUS_PER_PROCESS=1
export AORTA_JOB="$PWD/$job" AORTA_JOB_TASK="$task"

failed=0 stopped='' child=''
stop() {
    stopped=1
    echo stopped >> "$job/task-$task.log"
    if [ -n "$child" ]; then kill -TERM -- "$child"; fi
}
trap stop TERM
run() { # the number of a command, and the command
    if [ -n "$stopped" ]; then return; fi
    if grep -qsx "status $1 0" "$job/task-$task.log"; then return; fi # before the job was started again
    echo "began $1 $HOSTNAME" >> "$job/task-$task.log"
    set -m # a process group of its own
    (eval "$2") < /dev/null &
    child=$!
    set +m
    wait "$child"
    local status=$?
    while [ "$status" -gt 128 ] && kill -0 "$child" 2> /dev/null; do # a signal has ended the wait
        wait "$child"
        status=$?
    done
    child=''
    if [ "$status" -gt 1 ]; then failed=2; fi
    if [ -n "$stopped" ] && [ "$status" -ne 0 ]; then return; fi # it was asked to end
    echo "status $1 $status" >> "$job/task-$task.log"
}

case $task in
0)
    run 0 'cd -- /project && exec /bin/python -m pytest --color=no -o cache_dir=/project/.aorta/jobs/act-NAME/cache-0 @/project/.aorta/jobs/act-NAME/items-0.txt'
    ;;
esac
exit "$failed"
