package clusterhealth

import (
	"reflect"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestAccessPoints checks that AccessPoints returns only the host of a webhook's URL, and no
// password or query of the URL.
func TestAccessPoints(t *testing.T) {
	c := config.New("m1", config.RoleControlPlane)
	for _, none := range []*config.Config{nil, c} {
		if got := AccessPoints(none); !reflect.DeepEqual(got, nodespec.AccessPoints{}) {
			t.Errorf("without a cluster: %+v", got)
		}
	}
	c.Cluster = &config.Cluster{}
	k := &c.Cluster.Spec.Kubernetes
	k.Authentication.JWT = []config.JWTIssuer{{URL: "https://login.example.com"}}
	k.Authentication.Webhook = &config.AuthenticationWebhook{URL: "https://user:secret@tokens.example.com/review?key=secret"}
	k.Authorization.Webhooks = []config.AuthorizationWebhook{{Name: "policy", FailurePolicy: "Deny"}}
	want := nodespec.AccessPoints{
		Issuers: []string{"https://login.example.com"}, TokenWebhook: "tokens.example.com",
		Authorizers: []nodespec.Authorizer{{Name: "policy", FailurePolicy: "Deny"}},
	}
	if got := AccessPoints(c); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
