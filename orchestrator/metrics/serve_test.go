package metrics

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

// TestAuthorizer checks that the aggregator's own requests need no answer of the API server, and
// that the API server decides about all other users.
func TestAuthorizer(t *testing.T) {
	questions := 0
	client := fake.NewClientset()
	client.PrependReactor("create", "subjectaccessreviews", func(kubetesting.Action) (bool, runtime.Object, error) {
		questions++
		return true, nil, errors.New("no answer")
	})
	a, err := newAuthorizer(client.AuthorizationV1())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		who       user.Info
		want      authorizer.Decision
		questions bool
	}{
		{&user.DefaultInfo{Name: "system:kube-aggregator", Groups: []string{"system:masters"}}, authorizer.DecisionAllow, false},
		{&user.DefaultInfo{Name: "dora", Groups: []string{"system:authenticated"}}, authorizer.DecisionDeny, true},
	} {
		questions = 0
		got, _, _ := a.Authorize(t.Context(), authorizer.AttributesRecord{User: c.who, Verb: "get", Path: "/apis/metrics.k8s.io/v1beta1"})
		if (got == authorizer.DecisionAllow) != (c.want == authorizer.DecisionAllow) || (questions > 0) != c.questions {
			t.Errorf("%s: decision %v with %d questions", c.who.GetName(), got, questions)
		}
	}
}
