package supervise

// Spec describes a process. The process becomes the leader of a new session.
type Spec struct {
	Args []string // the executable's absolute path and its arguments
	Env  []string // the whole environment, KEY=value
	Dir  string   // working directory; "/" if empty

	UID, GID uint32   // user and group ids
	Groups   []uint32 // supplementary groups
	// Capabilities are the ambient and the bounding set of a process that is not root, as numbers
	// (unix.CAP_…). Empty for none. They have no effect for root, which has machined's
	// capabilities.
	Capabilities []uintptr
	NoNewPrivs   bool // no executed program can gain privileges (prctl(2), PR_SET_NO_NEW_PRIVS)

	// -1000 (never killed for memory) to 1000; nil: machined's own for a command, 0 for a service
	OOMScoreAdj *int
	Nice        int      // -20 to 19
	Rlimits     []Rlimit // instead of machined's own
}

// Rlimit is a resource limit (setrlimit(2)). A limit of open files must not be below machined's
// own.
type Rlimit struct {
	Resource   int // unix.RLIMIT_…
	Soft, Hard uint64
}
