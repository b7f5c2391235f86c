package apid

import (
	"crypto/x509"
	"fmt"
	"slices"
	"sort"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/pki"
)

// rule says which roles may call a method, and whether apid logs the calls.
type rule struct {
	minimum api.Role   // lowest role that may call the method
	narrow  []api.Role // narrow roles that may call it, too
	audited bool       // the .proto has an audit rule, so apid logs the calls
}

// roleTable contains the rule of each method, by full name ("/orlop.v1alpha1.Machine/Version").
type roleTable map[string]rule

// newRoleTable returns the rules of all methods. The rules of the API come from its protobuf
// descriptors; the two standard services of gRPC require the role reader.
func newRoleTable() roleTable {
	table := roleTable{}
	for _, m := range apiMethods() {
		table[fullMethod(m)] = ruleOf(m)
	}
	for _, file := range []protoreflect.FileDescriptor{healthpb.File_grpc_health_v1_health_proto, reflectionpb.File_grpc_reflection_v1_reflection_proto} {
		for _, m := range methodsOf(file) {
			table[fullMethod(m)] = rule{minimum: api.Role_ROLE_READER}
		}
	}
	return table
}

func ruleOf(m protoreflect.MethodDescriptor) rule {
	// A method without the option gets ROLE_UNSPECIFIED, and check then rejects every call.
	least, _ := proto.GetExtension(m.Options(), api.E_Role).(api.Role)
	narrow, _ := proto.GetExtension(m.Options(), api.E_Narrow).([]api.Role)
	return rule{minimum: least, narrow: narrow, audited: proto.HasExtension(m.Options(), api.E_Audit)}
}

// check returns nil if a caller with a role may call the method. Otherwise it returns an error for
// the caller.
func (t roleTable) check(method string, role api.Role) error {
	rule, known := t[method]
	switch {
	case !known:
		return fmt.Errorf("%s: cannot call: %s; compare its version with that of your tool", method, api.UnknownMethod)
	case rule.minimum == api.Role_ROLE_UNSPECIFIED:
		return fmt.Errorf("%s: cannot call: the method has no role, so no caller may call it", method)
	case role == api.Role_ROLE_UNSPECIFIED:
		return fmt.Errorf("%s: cannot call: your certificate names no role; ask for one with O=%s", method, organization(rule.minimum))
	case slices.Contains(rule.narrow, role), !isNarrow(role) && role >= rule.minimum:
		return nil
	}
	return fmt.Errorf("%s: cannot call: it needs the role %s, your certificate has %s", method, organization(rule.minimum), organization(role))
}

// mutates reports whether a method changes the machine or returns a secret. apid logs the calls of
// such a method.
func (t roleTable) mutates(method string) bool {
	return t[method].minimum > api.Role_ROLE_READER || t[method].audited
}

// Mutates returns the function mutates: it reports whether a method, given by its full name,
// changes the machine or returns a secret. With this function machined records the same calls that
// apid logs.
func Mutates() func(method string) bool { return newRoleTable().mutates }

func isNarrow(role api.Role) bool { return role > api.Role_ROLE_ADMIN }

// ladder has the roles in ascending order; each role includes the permissions of the roles before
// it. narrow has the narrow roles; each permits a single task.
var (
	ladder = []api.Role{api.Role_ROLE_MACHINE, api.Role_ROLE_READER, api.Role_ROLE_OPERATOR, api.Role_ROLE_ADMIN}
	narrow = []api.Role{api.Role_ROLE_LOG_READER, api.Role_ROLE_IMAGE_IMPORT, api.Role_ROLE_ETCD_BACKUP, api.Role_ROLE_JOIN}
)

// roleOf returns the role of a certificate. It is the highest role of the ladder in the
// organizations of the certificate, but not higher than most, the highest role that its CA can
// give. Without such a role, it is the first narrow role in the organizations, if the CA can give
// every role; otherwise ROLE_UNSPECIFIED.
func roleOf(cert *x509.Certificate, most api.Role) api.Role {
	names := func(r api.Role) bool { return slices.Contains(cert.Subject.Organization, organization(r)) }
	for _, r := range slices.Backward(ladder) {
		if names(r) {
			return min(r, most)
		}
	}
	if i := slices.IndexFunc(narrow, names); i >= 0 && most == api.Role_ROLE_ADMIN {
		return narrow[i]
	}
	return api.Role_ROLE_UNSPECIFIED
}

// organization returns the organization (O) of a certificate with a role.
func organization(role api.Role) string {
	switch role {
	case api.Role_ROLE_MACHINE:
		return pki.RoleMachine
	case api.Role_ROLE_READER:
		return pki.RoleReader
	case api.Role_ROLE_OPERATOR:
		return pki.RoleOperator
	case api.Role_ROLE_ADMIN:
		return pki.RoleAdmin
	case api.Role_ROLE_LOG_READER:
		return pki.RoleLogReader
	case api.Role_ROLE_IMAGE_IMPORT:
		return pki.RoleImageImport
	case api.Role_ROLE_JOIN:
		return pki.RoleJoin
	case api.Role_ROLE_ETCD_BACKUP:
		return pki.RoleEtcdBackup
	}
	return "nobody"
}

func apiMethods() []protoreflect.MethodDescriptor { return methodsOf(api.File_orlop_proto) }

func methodsOf(file protoreflect.FileDescriptor) []protoreflect.MethodDescriptor {
	var methods []protoreflect.MethodDescriptor
	for i := range file.Services().Len() {
		service := file.Services().Get(i)
		for j := range service.Methods().Len() {
			methods = append(methods, service.Methods().Get(j))
		}
	}
	return methods
}

func fullMethod(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// services lists the services for gRPC reflection: the services of the API, which apid forwards,
// and the two services that apid serves itself.
type services struct{}

// GetServiceInfo implements reflection.ServiceInfoProvider. Reflection reads only the keys of the
// map.
func (services) GetServiceInfo() map[string]grpc.ServiceInfo {
	info := map[string]grpc.ServiceInfo{}
	for _, name := range serviceNames() {
		info[name] = grpc.ServiceInfo{}
	}
	return info
}

func serviceNames() []string {
	names := []string{healthpb.Health_ServiceDesc.ServiceName, reflectionpb.ServerReflection_ServiceDesc.ServiceName}
	list := api.File_orlop_proto.Services()
	for i := range list.Len() {
		names = append(names, string(list.Get(i).FullName()))
	}
	sort.Strings(names)
	return names
}
