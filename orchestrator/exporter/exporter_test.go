package exporter

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/golden"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	// registers the metrics of etcd
	_ "go.etcd.io/etcd/server/v3/etcdserver"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
)

func get(t *testing.T, h http.Handler, path, token string) (int, string) {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// names returns the names of the metrics in a text, sorted.
func names(text string) (list []string) {
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, "# TYPE "); found {
			name, _, _ := strings.Cut(rest, " ")
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// TestNames compares the names of the metrics that exist before the first event with golden files.
// The test of the dashboards and alerts reads these files.
func TestNames(t *testing.T) {
	metrics.Register()
	metrics.UnschedulablePods().Set(0) // the scheduler sets it before its first pod
	for _, c := range []struct{ process, path, file, prefix string }{
		{component.API, "/etcd", "etcd.txt", "etcd_"}, {component.Controllers, "/scheduler", "scheduler.txt", "scheduler_"},
	} {
		status, text := get(t, Handler(c.process, dirs.Dirs{}), c.path, "")
		found := slices.DeleteFunc(names(text), func(name string) bool { return !strings.HasPrefix(name, c.prefix) })
		if status != http.StatusOK || len(found) == 0 {
			t.Fatalf("%s: %d %.200s", c.path, status, text)
		}
		golden.Assert(t, strings.Join(found, "\n")+"\n", c.file)
	}
	controllers := Handler(component.Controllers, dirs.Dirs{})
	if _, text := get(t, controllers, "/controllers", ""); strings.Contains(text, "\nscheduler_") || !strings.Contains(text, "\ngo_goroutines ") {
		t.Errorf("the metrics of the process \"controllers\":\n%.500s", text)
	}
	for _, path := range []string{"/authorize", "/etcd", "/containerd"} {
		if status, _ := get(t, controllers, path, ""); status != http.StatusNotFound {
			t.Errorf("the process \"controllers\" answers %s with %d, want 404", path, status)
		}
	}
}

// TestControllerManager checks that the process "controllers" serves the metrics of its child
// process controller-manager, and an error if the child does not run.
func TestControllerManager(t *testing.T) {
	d := dirs.Dirs{Controllers: filepath.Join(t.TempDir(), "controllers")}
	h := Handler(component.Controllers, d)
	if status, text := get(t, h, "/controller-manager", ""); status != http.StatusBadGateway || !strings.Contains(text, "not reachable") {
		t.Errorf("without a child: %d %s", status, text)
	}
	RunControllerManager(d)
	if status, text := get(t, h, "/controller-manager", ""); status != http.StatusOK || !strings.Contains(text, "go_goroutines ") {
		t.Errorf("%d %.300s", status, text)
	}
}

// TestAuthorize checks the HTTP status for a request with a token: 204 only if the API server
// authenticates the token and its user may get the metrics.
func TestAuthorize(t *testing.T) {
	outage := errors.New("no API server")
	for _, c := range []struct {
		name, header                 string
		connect, tokenErr, accessErr error
		authentic, allowed           bool
		status                       int
		text                         string
	}{
		{name: "no token", status: http.StatusUnauthorized},
		{name: "a password instead of a token", header: "Basic x", status: http.StatusUnauthorized},
		{name: "a token that is not authentic", header: "Bearer t", allowed: true, status: http.StatusUnauthorized},
		{name: "a user without the right", header: "Bearer t", authentic: true, status: http.StatusForbidden},
		{name: "a user with the right", header: "Bearer t", authentic: true, allowed: true, status: http.StatusNoContent},
		{name: "no kubeconfig", header: "Bearer t", connect: outage, status: http.StatusServiceUnavailable, text: "no API server"},
		{name: "no TokenReview", header: "Bearer t", tokenErr: outage, status: http.StatusServiceUnavailable, text: "no API server"},
		{name: "no SubjectAccessReview", header: "Bearer t", authentic: true, accessErr: outage, status: http.StatusServiceUnavailable, text: "no API server"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := fake.NewClientset()
			client.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
				r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
				if r.Spec.Token != "t" || len(r.Spec.Audiences) > 0 {
					t.Errorf("the review is %+v", r.Spec)
				}
				r.Status = authenticationv1.TokenReviewStatus{Authenticated: c.authentic, User: authenticationv1.UserInfo{Username: "prometheus", Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}}
				return true, r, c.tokenErr
			})
			client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
				r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
				if s := r.Spec; s.User != "prometheus" || !slices.Equal(s.Groups, []string{"g"}) || s.Extra["k"][0] != "v" || s.NonResourceAttributes.Path != "/metrics" || s.NonResourceAttributes.Verb != "get" || s.ResourceAttributes != nil {
					t.Errorf("the review is %+v", s)
				}
				r.Status.Allowed = c.allowed
				return true, r, c.accessErr
			})
			h := &authorizer{connect: func() (kubernetes.Interface, error) { return client, c.connect }}
			if status, text := get(t, h, "/authorize", c.header); status != c.status || !strings.Contains(text, c.text) {
				t.Errorf("%d %q; want %d %q", status, text, c.status, c.text)
			}
		})
	}
}
