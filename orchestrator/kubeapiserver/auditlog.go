package kubeapiserver

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/natefinch/lumberjack.v2"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	auditing "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/server/options"
	logbackend "k8s.io/apiserver/plugin/pkg/audit/log"
	"k8s.io/apiserver/plugin/pkg/audit/truncate"

	"github.com/orlop-os/orlop/pkg/audit/kubeaudit"
)

// maxAuditEvent is the maximum size of an event in bytes. The log omits the request and the
// response of a larger event. Of the recorded kinds, only huge roles reach this size.
const maxAuditEvent = 256 << 10

// newAuditBackend returns the backend for upstream's flags --audit-log-…, which writes a chain of
// lines (package kubeaudit). Upstream's own backend for these flags is not used, because it accepts
// no other writer.
func newAuditBackend(o options.AuditLogOptions) (auditing.Backend, error) {
	chain, err := kubeaudit.NewWriter(filepath.Dir(o.Path), &lumberjack.Logger{
		Filename: o.Path, MaxAge: o.MaxAge, MaxBackups: o.MaxBackups, MaxSize: o.MaxSize, Compress: o.Compress,
	})
	if err != nil {
		return nil, err
	}
	if filepath.Base(o.Path) != kubeaudit.File {
		return nil, fmt.Errorf("the audit log is %s, and its readers know %s", o.Path, kubeaudit.File)
	}
	version := auditv1.SchemeGroupVersion
	return truncate.NewBackend(logbackend.NewBackend(chain, o.Format, version), truncate.Config{MaxEventSize: maxAuditEvent, MaxBatchSize: 2 * maxAuditEvent}, version), nil
}

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
