package extensions

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// TestProber checks the results of requests to a server. The server rejects one caller (429). It
// cannot convert the objects of some kinds: for things and partial, already the list fails; for
// cached, only the read from etcd.
func TestProber(t *testing.T) {
	const failed = `{"kind":"Status","message":"conversion webhook for example.org/v1, Kind=Thing failed: Post \"https://dead.default.svc:443/?timeout=30s\": tls: failed to verify certificate: x509: certificate signed by unknown authority"}`
	answers := map[string]struct {
		status int
		body   string
	}{
		"/rejected": {http.StatusTooManyRequests, ""}, "/forbidden": {http.StatusForbidden, ""}, "/served": {http.StatusOK, "{}"},
		"/apis/example.org/v1/things?limit=1":              {http.StatusInternalServerError, failed},
		"/apis/example.org/v1/cached?limit=1":              {http.StatusOK, `{"items":[{"metadata":{"name":"a","namespace":"default"}}]}`},
		"/apis/example.org/v1/namespaces/default/cached/a": {http.StatusInternalServerError, failed},
		"/apis/example.org/v1/good?limit=1":                {http.StatusOK, `{"items":[{"metadata":{"name":"a"}}]}`},
		"/apis/example.org/v1/good/a":                      {http.StatusOK, `{"metadata":{"name":"a"}}`},
		"/apis/example.org/v1/empty?limit=1":               {http.StatusOK, `{"items":[]}`},
		"/apis/example.org/v1/other?limit=1":               {http.StatusInternalServerError, `{"kind":"Status","message":"etcdserver: request timed out"}`},
		"/apis/example.org/v1/partial?limit=1":             {http.StatusInternalServerError, `{"kind":"Status","message":"conversion webhook for example.org/v1, Kind=Thing returned 0 objects, expected 1"}`},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, known := answers[r.URL.RequestURI()]
		if !known {
			t.Errorf("request %s", r.URL)
		}
		w.Header().Set(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID, "1")
		w.Header().Set(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID, "2")
		w.WriteHeader(a.status)
		fmt.Fprint(w, a.body)
	}))
	defer server.Close()
	p := &prober{server: server.Client(), host: server.URL}
	for _, name := range []string{"rejected", "forbidden", "served"} {
		p.callers = append(p.callers, caller{name, server.Client(), server.URL + "/" + name})
	}
	definitions := make([]conversion, 0, 6)
	for _, name := range []string{"things", "cached", "good", "empty", "other", "partial"} {
		definitions = append(definitions, conversion{name, backend{}, []string{"/apis/example.org/v1/" + name}})
	}
	p.run(t.Context(), observation{conversions: definitions})
	if len(p.classified) != 0 {
		t.Errorf("without objects of users: %v", p.classified)
	}
	p.last = time.Time{}
	p.run(t.Context(), observation{conversions: definitions, flows: true})
	if want := []classification{{"rejected", "1", "2", true}, {"forbidden", "1", "2", false}, {"served", "1", "2", false}}; !slices.Equal(p.classified, want) {
		t.Errorf("classified %v, want %v", p.classified, want)
	}
	const tls = `Post "https://dead.default.svc:443/?timeout=30s": tls: failed to verify certificate: x509: certificate signed by unknown authority`
	if want := map[string]string{"things": tls, "cached": tls, "partial": "0 objects, expected 1"}; !maps.Equal(p.unconverted, want) {
		t.Errorf("not converted: %v, want %v", p.unconverted, want)
	}
}

// TestSlowConverters checks a definition with a probe that waits for slow converters of other
// definitions until the time for all probes has expired. The definition retains its earlier result.
func TestSlowConverters(t *testing.T) {
	var reading sync.WaitGroup
	reading.Add(maxReads)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		reading.Done() // the counter panics if there are more than maxReads requests
		<-r.Context().Done()
	}))
	defer server.Close()
	p := &prober{server: server.Client(), host: server.URL, unconverted: map[string]string{}}
	var definitions []conversion
	for n := range 3 * maxReads {
		name := fmt.Sprint("d", n)
		definitions = append(definitions, conversion{name, backend{}, []string{"/" + name}})
		if n%2 == 0 {
			p.unconverted[name] = "it failed before"
		}
	}
	want := maps.Clone(p.unconverted)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(time.Minute))
	defer cancel()
	ended := endsWith{ctx, make(chan struct{})}
	go func() {
		reading.Wait()
		close(ended.done)
	}()
	if got := p.read(ended, definitions); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// endsWith is a context with a deadline that expires when the test closes done.
type endsWith struct {
	context.Context
	done chan struct{}
}

func (c endsWith) Done() <-chan struct{} { return c.done }

func (c endsWith) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestThrottles checks by which objects requests are throttled, and which of the objects are
// Kubernetes' own. A request counts if it was rejected, or if its level can have no seat.
func TestThrottles(t *testing.T) {
	meta := func(name, uid, own string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, UID: types.UID(uid), Annotations: map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: own}}
	}
	limited := func(borrows *int32) flowcontrolv1.PriorityLevelConfigurationSpec {
		return flowcontrolv1.PriorityLevelConfigurationSpec{Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: new(int32(0)), BorrowingLimitPercent: borrows}}
	}
	client := fake.NewClientset(
		&flowcontrolv1.FlowSchema{ObjectMeta: meta("own", "1", "true")}, &flowcontrolv1.FlowSchema{ObjectMeta: meta("users", "2", "")},
		&flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: meta("edited", "3", "false")},
		&flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: meta("none", "4", ""), Spec: limited(new(int32(0)))},
		&flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: meta("borrows", "5", ""), Spec: limited(nil)},
	)
	w := &watcher{kube: informers.NewSharedInformerFactory(client, 0)}
	flows := w.kube.Flowcontrol().V1()
	flows.FlowSchemas().Informer()
	flows.PriorityLevelConfigurations().Informer()
	w.kube.Start(t.Context().Done())
	w.kube.WaitForCacheSync(t.Context().Done())
	got := w.throttles([]classification{{"a", "1", "3", true}, {"b", "2", "3", true}, {"c", "deleted", "3", true}, {"d", "2", "3", false}, {"e", "2", "4", false}, {"f", "2", "5", false}})
	want := []throttle{{who: "a", schema: "own", level: "edited", ownSchema: true}, {who: "b", schema: "users", level: "edited"}, {who: "e", schema: "users", level: "none"}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
