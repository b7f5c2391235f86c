package metricsd

import "time"

// Limits of connections and requests. Usual are one or two Prometheus servers, which scrape seven
// paths each in 15 to 60 seconds over one connection per path.
const (
	maxConnections = 64
	// per address: pods of another machine have the address of their node
	maxPerAddress = 24
	maxScrapes    = 8 // concurrent; further ones get 503
	maxReviews    = 4 // concurrent checks of tokens
	maxHeader     = 24 << 10
	maxToken      = 16 << 10
	// maxAnswer bounds the metrics of a process in bytes. 2 MiB are usual for the controllers of a
	// large cluster.
	maxAnswer     = 32 << 20
	maxReason     = 300 // bytes of the reason of another process for an error
	headerTimeout = 5 * time.Second
	scrapeTimeout = 10 * time.Second // the default timeout of Prometheus
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	stopTimeout   = 2 * time.Second
)

// Limits of the checks of tokens. Each check is two calls to the API server.
const (
	reviewTimeout = 5 * time.Second
	// freshTime is the time for which the answer about an admitted token counts, and so the longest
	// time for which a token is admitted after its end.
	freshTime = time.Minute
	// staleTime is the time for which it counts if no further answer arrives: the API server is
	// unreachable, or other callers exhaust the limits. Metrics matter most then.
	staleTime = 6 * time.Minute
	// recheckInterval is the interval between two checks of an admitted token without an answer.
	recheckInterval = 10 * time.Second
	maxKnown        = 64 // admitted tokens; the one with the oldest answer is dropped
)

// logInterval and logBurst limit the log lines about rejected callers of a network.
const (
	logInterval = 10 * time.Second
	logBurst    = 5
)
