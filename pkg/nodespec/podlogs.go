package nodespec

// PodLogs are the settings of podlogd (Machine.spec.logging.pods), its only argument, in JSON.
type PodLogs struct {
	Machine        string   `json:"machine"`
	Receivers      []string `json:"receivers"`            // names, at least one
	Namespaces     []string `json:"namespaces,omitempty"` // empty: all
	Exclude        []string `json:"exclude,omitempty"`    // namespaces
	LinesPerSecond int      `json:"linesPerSecond"`       // of a container
}

// The calls of podlogd to machined over HTTP on paths.PodLogsSocket, below PodLogsURL and the name
// of a receiver: POST of otlp.Path passes a request on to the receiver, with the number of its
// records as parameter "records"; GET and PUT of PodLogsPositions read and store the positions.
const (
	PodLogsURL       = "http://machined/"
	PodLogsPositions = "/positions"
	// MaxPodLogsBody is the maximum size of a body in bytes.
	MaxPodLogsBody = 2 << 20
)
