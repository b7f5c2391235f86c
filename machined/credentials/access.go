package credentials

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Access is who the API server believes and whom it asks, beside what always holds: client
// certificates and service-account tokens for who a caller is, the Node authorizer and RBAC for
// what it may do.
type Access struct {
	Authentication config.Authentication
	Authorization  config.Authorization
}

// NamedFile is a file of the API server's folder.
type NamedFile struct {
	Name    string
	Content []byte
}

// Files are the configuration files that kube-apiserver reads about access, each after those that
// it names. The server reads the two configurations again whenever they change, but no kubeconfig;
// so a kubeconfig's name goes with its content. dir is the folder in which the server will find the
// files.
func (a Access) Files(dir string) []NamedFile {
	var files []NamedFile
	if w := a.tokenWebhook(); w != nil {
		files = append(files, *w)
	}
	var kubeconfigs []string
	for _, w := range a.Authorization.Webhooks {
		f := kubeconfig(authorizationPrefix+w.Name, w.URL, w.CA, w.Client)
		files = append(files, f)
		kubeconfigs = append(kubeconfigs, filepath.Join(dir, f.Name))
	}
	return append(files,
		NamedFile{nodespec.Authentication, text(authentication(a.Authentication))},
		NamedFile{nodespec.Authorization, text(authorization(a.Authorization, kubeconfigs))})
}

// TokenWebhook is how the service for tokens is asked; nil when there is none.
func (a Access) TokenWebhook() *nodespec.TokenWebhook {
	f := a.tokenWebhook()
	if f == nil {
		return nil
	}
	return &nodespec.TokenWebhook{Kubeconfig: f.Name, CacheTTL: time.Duration(a.Authentication.Webhook.CacheTTL).String()}
}

// Check is what `orchestrator check-access` is asked, so that the API server is not given what it
// could not read; nil when there is nothing in it that pkg/config has not judged.
func (a Access) Check(dnsDomain string) *nodespec.AccessCheck {
	if len(a.Authentication.JWT) == 0 && len(a.Authorization.Webhooks) == 0 {
		return nil
	}
	check := nodespec.AccessCheck{DNSDomain: dnsDomain}
	for _, f := range a.Files(paths.KubeAPI) {
		switch f.Name {
		case nodespec.Authentication:
			check.Authentication = string(f.Content)
		case nodespec.Authorization:
			check.Authorization = string(f.Content)
		}
	}
	return &check
}

// ours turns the API server's names of fields into those of the Cluster document.
var ours = strings.NewReplacer(
	"jwt[", "authentication.jwt[", "webhooks[", "authorization.webhooks[",
	".issuer.url", ".url", ".issuer.discoveryURL", ".discoveryURL", ".issuer.certificateAuthority", ".ca", ".issuer.audiences", ".audiences",
	".claimMappings.username.expression", ".username", ".claimMappings.groups.expression", ".groups",
	".claimMappings.uid.expression", ".uid", ".claimMappings.extra", ".extra",
	".claimValidationRules", ".claimRules", ".userValidationRules", ".userRules",
)

// InDocument turns the lines that `orchestrator check-access` writes into words about the Cluster
// document.
func InDocument(lines string) string {
	var out []string
	for line := range strings.Lines(lines) {
		out = append(out, "Cluster.spec.kubernetes."+ours.Replace(strings.TrimSpace(line)))
	}
	return strings.Join(out, "; ")
}

func (a Access) tokenWebhook() *NamedFile {
	w := a.Authentication.Webhook
	if w == nil {
		return nil
	}
	f := kubeconfig(tokenPrefix+"webhook", w.URL, w.CA, w.Client)
	return &f
}

// The names of the webhooks' kubeconfigs begin with these.
const (
	tokenPrefix         = "token-"
	authorizationPrefix = "authorization-"
)

// object is a part of a document of Kubernetes. It is written with its fields sorted, so the same
// value gives the same text.
type object = map[string]any

func text(o object) []byte {
	content, err := yaml.Marshal(o)
	if err != nil {
		panic(err) // only strings, numbers, lists and maps go in
	}
	return content
}

const accessVersion = "apiserver.config.k8s.io/v1"

// authentication lets a caller without credentials ask whether the server lives, and nothing else.
func authentication(a config.Authentication) object {
	issuers := []object{}
	for _, j := range a.JWT {
		issuers = append(issuers, issuer(j))
	}
	return object{
		"apiVersion": accessVersion,
		"kind":       "AuthenticationConfiguration",
		"anonymous": object{
			"enabled":    true,
			"conditions": []object{{"path": "/livez"}, {"path": "/readyz"}, {"path": "/healthz"}},
		},
		"jwt": issuers,
	}
}

func issuer(j config.JWTIssuer) object {
	where := object{"url": j.URL, "audiences": j.Audiences, "audienceMatchPolicy": "MatchAny"}
	if j.DiscoveryURL != "" {
		where["discoveryURL"] = j.DiscoveryURL
	}
	if !j.CA.IsZero() {
		where["certificateAuthority"] = j.CA.PEM()
	}
	mapped := object{"username": object{"expression": j.Username}}
	if j.Groups != "" {
		mapped["groups"] = object{"expression": j.Groups}
	}
	if j.UID != "" {
		mapped["uid"] = object{"expression": j.UID}
	}
	extra := []object{}
	for _, key := range slices.Sorted(maps.Keys(j.Extra)) {
		extra = append(extra, object{"key": key, "valueExpression": j.Extra[key]})
	}
	mapped["extra"] = extra
	return object{
		"issuer":               where,
		"claimValidationRules": rules(j.ClaimRules),
		"claimMappings":        mapped,
		"userValidationRules":  rules(j.UserRules),
	}
}

func rules(list []config.Rule) []object {
	out := []object{}
	for _, r := range list {
		out = append(out, object{"expression": r.Expression, "message": r.Message})
	}
	return out
}

// Who the cluster's own components are: the users, and the groups, that are theirs alone. The
// add-ons are among them, because one of them may bring the service that is asked, and so is the
// API server where it calls kubelets, which ask it whether it may.
var (
	ownUsers = []string{
		"system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy", "kube-apiserver-kubelet-client", "orlop:coredns",
		nodespec.MetricsUser, nodespec.AddonsUser,
	}
	ownGroups = []string{
		"system:nodes", nodespec.NodeAgentGroup, "system:serviceaccounts:kube-system", "system:serviceaccounts:" + nodespec.AddonsNamespace,
	}
)

// notOurselves keeps the cluster's own components out of the questions to webhooks: a service that
// is away and whose failure means no would otherwise stop the components that have to bring it
// back.
var notOurselves = fmt.Sprintf("!(request.user in ['%s'] || request.groups.exists(g, g in ['%s']))", strings.Join(ownUsers, "', '"), strings.Join(ownGroups, "', '"))

// authorization is the order in which the authorizers are asked; the first that has an opinion
// decides. kubeconfigs are the webhooks' own, in the same order.
func authorization(a config.Authorization, kubeconfigs []string) object {
	authorizers := []object{{"type": "Node", "name": "node"}}
	for i, w := range a.Webhooks {
		conditions := []object{}
		for _, c := range append(slices.Clone(w.MatchConditions), notOurselves) {
			conditions = append(conditions, object{"expression": c})
		}
		authorizers = append(authorizers, object{"type": "Webhook", "name": w.Name, "webhook": object{
			"timeout":                    time.Duration(w.Timeout).String(),
			"authorizedTTL":              time.Duration(w.AuthorizedTTL).String(),
			"unauthorizedTTL":            time.Duration(w.UnauthorizedTTL).String(),
			"failurePolicy":              string(w.FailurePolicy),
			"subjectAccessReviewVersion": "v1",
			"matchConditionSubjectAccessReviewVersion": "v1",
			"matchConditions":                          conditions,
			"connectionInfo": object{
				"type":           "KubeConfigFile",
				"kubeConfigFile": kubeconfigs[i],
			},
		}})
	}
	return object{
		"apiVersion":  accessVersion,
		"kind":        "AuthorizationConfiguration",
		"authorizers": append(authorizers, object{"type": "RBAC", "name": "rbac"}),
	}
}

// kubeconfig is how the API server reaches a webhook.
func kubeconfig(prefix, url string, ca config.Bundle, client *config.CertKey) NamedFile {
	const name, user = "webhook", "kube-apiserver"
	base64 := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	credentials := object{}
	if client != nil {
		credentials["client-certificate-data"] = base64(client.Cert.PEM())
		credentials["client-key-data"] = base64(client.Key.PEM())
	}
	content := text(object{
		"apiVersion":      "v1",
		"kind":            "Config",
		"clusters":        []object{{"name": name, "cluster": object{"server": url, "certificate-authority-data": base64(ca.PEM())}}},
		"users":           []object{{"name": user, "user": credentials}},
		"contexts":        []object{{"name": name, "context": object{"cluster": name, "user": user}}},
		"current-context": name,
	})
	sum := sha256.Sum256(content)
	return NamedFile{fmt.Sprintf("%s-%x.yaml", prefix, sum[:8]), content}
}
