#!/bin/sh
# Prints running, success or failed for a Slurm job's number.
state=$(scontrol --oneliner show job "$1" 2> /dev/null | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p')
case "$state" in
  COMPLETED) echo success ;;
  PENDING | CONFIGURING | RUNNING | SUSPENDED | COMPLETING | REQUEUED | STOPPED) echo running ;;
  *) echo failed ;;
esac
