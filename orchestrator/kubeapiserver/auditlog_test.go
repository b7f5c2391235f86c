package kubeapiserver

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditing "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/server/options"
	logbackend "k8s.io/apiserver/plugin/pkg/audit/log"

	auditchain "github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/audit/kubeaudit"
)

// recordedURLs is a backend that records the URLs of events.
type recordedURLs struct {
	auditing.Backend
	urls []string
}

func (k *recordedURLs) ProcessEvents(events ...*auditinternal.Event) bool {
	for _, e := range events {
		k.urls = append(k.urls, e.RequestURI)
	}
	return true
}

// TestWithoutQueries checks that withoutQueries removes the query from the URLs of commands in pods
// and of proxies, because it can contain secrets. It retains all other queries.
func TestWithoutQueries(t *testing.T) {
	event := func(subresource, uri string) *auditinternal.Event {
		return &auditinternal.Event{RequestURI: uri, ObjectRef: &auditinternal.ObjectReference{Subresource: subresource}}
	}
	exec := event("exec", "/api/v1/namespaces/a/pods/db/exec?command=mysql&command=-psecret")
	k := &recordedURLs{}
	if !(withoutQueries{k}).ProcessEvents(exec, event("proxy", "/api/v1/namespaces/a/services/s/proxy/login?token=x"), event("", "/api/v1/pods?limit=500"),
		&auditinternal.Event{RequestURI: "/metrics?x=1"}) {
		t.Error("ProcessEvents returns false")
	}
	want := []string{"/api/v1/namespaces/a/pods/db/exec", "/api/v1/namespaces/a/services/s/proxy/login", "/api/v1/pods?limit=500", "/metrics?x=1"}
	if !slices.Equal(k.urls, want) || exec.RequestURI == want[0] {
		t.Errorf("recorded %q, want %q; the event of the request now has %s", k.urls, want, exec.RequestURI)
	}
}

// TestAuditChain checks that the events form a single chain, also after a restart of the server. If
// an event is too large, only the request object in it is omitted.
func TestAuditChain(t *testing.T) {
	dir := t.TempDir()
	o := options.AuditLogOptions{Path: filepath.Join(dir, "audit.log"), MaxSize: 1, MaxBackups: 2, Format: logbackend.FormatJson}
	for range 2 { // a server, and its next start
		backend, err := newAuditBackend(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []*auditinternal.Event{
			{Level: auditinternal.LevelMetadata, RequestURI: "/api/v1/pods"},
			{Level: auditinternal.LevelRequest, RequestURI: "/apis/rbac", RequestObject: &runtime.Unknown{Raw: []byte(`"` + strings.Repeat("x", maxAuditEvent) + `"`), ContentType: runtime.ContentTypeJSON}},
		} {
			if !backend.ProcessEvents(e) {
				t.Errorf("%s is not recorded", e.RequestURI)
			}
		}
	}
	var uris []string
	chain := auditchain.Chain{Record: kubeaudit.Record}
	log := kubeaudit.NewLog(dir)
	once, stop := context.WithCancel(t.Context())
	stop()
	log.Run(once)
	err := (&kubeaudit.Reader{Log: log}).Read(0, func(_ uint64, line []byte) error {
		var e auditinternal.Event
		if err := runtime.DecodeInto(auditing.Codecs.UniversalDecoder(), line, &e); err != nil {
			return err
		}
		if e.RequestObject != nil || len(line) > 2000 {
			t.Errorf("a line has %d bytes", len(line))
		}
		uris = append(uris, e.RequestURI)
		_, err := chain.Check(line)
		return err
	})
	if want := []string{"/api/v1/pods", "/apis/rbac", "/api/v1/pods", "/apis/rbac"}; err != nil || !slices.Equal(uris, want) || chain.Last.Number != 4 {
		t.Errorf("recorded %q, %v; the last entry of the chain is %v", uris, err, chain.Last)
	}
	o.Path = filepath.Join(dir, "other.log")
	if _, err := newAuditBackend(o); err == nil {
		t.Error("newAuditBackend accepts a log file that kubeaudit does not read")
	}
}
