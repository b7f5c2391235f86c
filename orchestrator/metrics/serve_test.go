package metrics

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"
)

// TestAuthorizer checks that requests of the aggregator are allowed without a call to the API
// server, and that the API server decides about the requests of all other users.
func TestAuthorizer(t *testing.T) {
	var reviews atomic.Int32
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reviews.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": {"denied": true}}`))
	}))
	defer api.Close()
	client, err := kubernetes.NewForConfig(&clientrest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAuthorizer(client.AuthorizationV1())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		who     user.Info
		want    authorizer.Decision
		reviews int32
	}{
		{&user.DefaultInfo{Name: "system:kube-aggregator", Groups: []string{"system:masters"}}, authorizer.DecisionAllow, 0},
		{&user.DefaultInfo{Name: "dora", Groups: []string{"system:authenticated"}}, authorizer.DecisionDeny, 1},
	} {
		reviews.Store(0)
		got, _, err := a.Authorize(t.Context(), authorizer.AttributesRecord{User: c.who, Verb: "get", Path: "/apis/metrics.k8s.io/v1beta1"})
		if err != nil || got != c.want || reviews.Load() != c.reviews {
			t.Errorf("%s: decision %v after %d reviews by the API server, %v", c.who.GetName(), got, reviews.Load(), err)
		}
	}
}
