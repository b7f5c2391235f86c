package kubeapiserver

import (
	"slices"
	"strings"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditing "k8s.io/apiserver/pkg/audit"
)

// withoutQueries is an audit backend that is told nothing of what stands behind the question mark
// where that is somebody's own text: the command of an exec or attach, and what a proxy hands on.
// Upstream has the whole URL in every event, at whatever level (k8s.io/apiserver/pkg/audit,
// LogRequestMetadata), and a command line can hold a password.
type withoutQueries struct{ auditing.Backend }

// ProcessEvents implements audit.Sink.
func (w withoutQueries) ProcessEvents(events ...*auditinternal.Event) bool {
	events = slices.Clone(events)
	for i, e := range events {
		if e.ObjectRef == nil {
			continue
		}
		switch e.ObjectRef.Subresource {
		case "exec", "attach", "proxy":
		default:
			continue
		}
		if path, _, more := strings.Cut(e.RequestURI, "?"); more {
			short := *e // the request still has the event itself
			short.RequestURI = path
			events[i] = &short
		}
	}
	return w.Backend.ProcessEvents(events...)
}
