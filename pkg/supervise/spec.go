package supervise

// Spec describes a process. The process becomes the leader of a new session.
type Spec struct {
	Args []string // the executable's absolute path and its arguments
	Env  []string // the whole environment, as KEY=value
	Dir  string   // working directory; "/" if empty

	UID, GID uint32   // user ID and group ID
	Groups   []uint32 // supplementary groups
	// Capabilities are the ambient set and the bounding set of capabilities of a process that is
	// not root, as numbers (unix.CAP_…). Without them, the process has no capabilities. They have
	// no effect on a process of root, which has the capabilities of machined.
	Capabilities []uintptr
	NoNewPrivs   bool // no program can gain privileges by execve (PR_SET_NO_NEW_PRIVS of prctl(2))

	// OOMScoreAdj is the oom_score_adj of the process, from -1000 (the kernel never kills it when
	// memory runs out) to 1000. If it is nil, a service gets 0, and a command inherits the value of
	// machined.
	OOMScoreAdj *int
	Nice        int      // -20 to 19
	Rlimits     []Rlimit // replace the limits that the process inherits from machined
}

// Rlimit is a resource limit (setrlimit(2)). A limit for open files must not be below the limit of
// machined: machined itself has the limit for a moment.
type Rlimit struct {
	Resource   int // unix.RLIMIT_…
	Soft, Hard uint64
}
