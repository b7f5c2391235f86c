package kubeapiserver

import (
	"encoding/json"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// CheckAccess reads a nodespec.AccessCheck as JSON and returns the problems that kube-apiserver
// would report, a sentence each, or none. It checks the expressions, which only upstream can
// validate; pkg/config checks the rest.
func CheckAccess(from io.Reader) ([]string, error) {
	var in nodespec.AccessCheck
	if err := json.NewDecoder(from).Decode(&in); err != nil {
		return nil, fmt.Errorf("cannot read the input: %w", err)
	}
	var errs field.ErrorList
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	decoded, err := runtime.Decode(codecs.UniversalDecoder(), []byte(in.Authentication))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", nodespec.Authentication, err)
	}
	authentication, ok := decoded.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("%s: is a %T", nodespec.Authentication, decoded)
	}
	own := []string{Issuer(nodespec.Spec{Network: nodespec.Network{DNSDomain: in.DNSDomain}})}
	errs = append(errs, validation.ValidateAuthenticationConfiguration(authenticationcel.NewDefaultCompiler(), authentication, own)...)

	authorization, err := load.LoadFromData([]byte(in.Authorization))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", nodespec.Authorization, err)
	}
	compiler := authorizationcel.NewDefaultCompiler()
	for _, a := range authorization.Authorizers {
		if a.Webhook == nil {
			continue
		}
		_, found := validation.ValidateAndCompileMatchConditions(compiler, a.Webhook.MatchConditions)
		for _, e := range found {
			e.Field = fmt.Sprintf("webhooks[%s].%s", a.Name, e.Field)
			errs = append(errs, e)
		}
	}
	var problems []string
	for _, e := range errs {
		problems = append(problems, e.Error())
	}
	return problems, nil
}
