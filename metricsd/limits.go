package metricsd

import "time"

// Limits of connections and requests. Usually one or two Prometheus servers scrape seven paths
// each, every 15 to 60 seconds, with one connection per path.
const (
	maxConnections = 64
	// per address; the pods of another machine can share the address of their node
	maxPerAddress = 24
	maxScrapes    = 8 // concurrent scrapes; further scrapes get status 503
	maxReviews    = 4 // concurrent checks of tokens
	maxHeader     = 24 << 10
	maxToken      = 16 << 10
	// maxAnswer is the largest size of the metrics of a process, in bytes. The controllers of a
	// large cluster usually have 2 MiB.
	maxAnswer     = 32 << 20
	maxReason     = 300 // bytes of the error message of another process
	headerTimeout = 5 * time.Second
	scrapeTimeout = 10 * time.Second // the default timeout of Prometheus
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	stopTimeout   = 2 * time.Second
)

// Limits of the checks of tokens. A check causes two calls of the API server.
const (
	reviewTimeout = 5 * time.Second
	// freshTime is the time for which an admission is cached without a new check. A token that
	// becomes invalid is admitted for at most this time, while the API server responds.
	freshTime = time.Minute
	// staleTime is the time for which an admission is cached if new checks get no result, because
	// the API server is unreachable or other callers use up the limits. Metrics are most important
	// during an outage.
	staleTime = 6 * time.Minute
	// recheckInterval is the time between two checks of an admitted token if the checks get no
	// result.
	recheckInterval = 10 * time.Second
	maxKnown        = 64 // cached tokens; beyond it, the token with the oldest result is dropped
)

// logInterval and logBurst limit the log lines about rejected callers, per network.
const (
	logInterval = 10 * time.Second
	logBurst    = 5
)
