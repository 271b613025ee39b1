"""What a command's exit status says."""

COMPLETE = 0
FAILED = 1  # an error of a problem, a method, or of fbompi itself
MISTAKE = 2  # something the user can mend, told in one line
LOSSES = 4  # the run is complete, but ranks were lost or clients left out on the way
RESUMABLE = 75  # stopped on request, or for want of room or ranks: fbompi resume goes on (EX_TEMPFAIL of sysexits.h)

MEANINGS = {
    COMPLETE: "complete",
    FAILED: "failed",
    MISTAKE: "a mistake in the configuration, a data file or a run file",
    LOSSES: "complete, but ranks were lost or clients left out",
    RESUMABLE: "stopped; fbompi resume goes on",
}
