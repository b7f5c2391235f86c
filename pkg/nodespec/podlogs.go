package nodespec

// PodLogs are the settings of podlogd (Machine.spec.logging.pods). They are its only argument, in
// JSON.
type PodLogs struct {
	Machine        string   `json:"machine"`
	Receivers      []string `json:"receivers"`            // names of receivers; at least one
	Namespaces     []string `json:"namespaces,omitempty"` // empty for all namespaces
	Exclude        []string `json:"exclude,omitempty"`    // namespaces whose logs are not sent
	LinesPerSecond int      `json:"linesPerSecond"`       // maximum per container
}

// machined serves podlogd over HTTP on paths.PodLogsSocket. The URL of a call is PodLogsURL, the
// name of a receiver, and a path. POST of the path otlp.Path passes a request on to the receiver;
// its parameter "records" is the number of records. GET and PUT of the path PodLogsPositions read
// and store the positions of the receiver in the logs.
const (
	PodLogsURL       = "http://machined/"
	PodLogsPositions = "/positions"
	// MaxPodLogsBody is the maximum size of the body of a request, in bytes.
	MaxPodLogsBody = 2 << 20
)
