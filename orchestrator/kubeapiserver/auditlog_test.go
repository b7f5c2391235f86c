package kubeapiserver

import (
	"slices"
	"testing"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditing "k8s.io/apiserver/pkg/audit"
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

// TestWithoutQueries checks that no command line reaches a log, and that other queries do.
func TestWithoutQueries(t *testing.T) {
	of := func(subresource, uri string) *auditinternal.Event {
		return &auditinternal.Event{RequestURI: uri, ObjectRef: &auditinternal.ObjectReference{Subresource: subresource}}
	}
	exec := of("exec", "/api/v1/namespaces/a/pods/db/exec?command=mysql&command=-psecret")
	k := &recordedURLs{}
	if !(withoutQueries{k}).ProcessEvents(exec, of("proxy", "/api/v1/namespaces/a/services/s/proxy/login?token=x"), of("", "/api/v1/pods?limit=500"),
		&auditinternal.Event{RequestURI: "/metrics?x=1"}) {
		t.Error("not kept")
	}
	want := []string{"/api/v1/namespaces/a/pods/db/exec", "/api/v1/namespaces/a/services/s/proxy/login", "/api/v1/pods?limit=500", "/metrics?x=1"}
	if !slices.Equal(k.urls, want) || exec.RequestURI == want[0] {
		t.Errorf("%q, want %q; the event of the request has %s", k.urls, want, exec.RequestURI)
	}
}
