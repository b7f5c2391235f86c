package kubeapiserver

import (
	"slices"
	"strings"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditing "k8s.io/apiserver/pkg/audit"
)

// withoutQueries is an audit backend that removes the query of the URL where it contains user text:
// the command of an exec or attach, and the query that a proxy forwards. Upstream records the whole
// URL in every event, at every level (k8s.io/apiserver/pkg/audit, LogRequestMetadata), and a
// command line can contain a password.
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
			short := *e // a copy, because the request still uses the event
			short.RequestURI = path
			events[i] = &short
		}
	}
	return w.Backend.ProcessEvents(events...)
}
