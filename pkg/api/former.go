package api

// formerDropped is the first version without the former names, because a cluster need not be able
// to contain machines of this version and of 0.1.0 at the same time.
const formerDropped = "0.4.0"

// formerNames maps the names of methods in version 0.1.0 to their present names. Machines of both
// versions are in one cluster while a rolling upgrade lasts. The messages are the same.
var formerNames = map[string]string{
	"/orlop.v1alpha1.Cluster/Invite":    Cluster_CreateTicket_FullMethodName,
	"/orlop.v1alpha1.Cluster/Members":   Cluster_ListMembers_FullMethodName,
	"/orlop.v1alpha1.Cluster/Pending":   Cluster_ListPending_FullMethodName,
	"/orlop.v1alpha1.Cluster/Remove":    Cluster_RemoveMember_FullMethodName,
	"/orlop.v1alpha1.Cluster/Roll":      Cluster_GetMembership_FullMethodName,
	"/orlop.v1alpha1.Cluster/Tell":      Cluster_ReplicateMembership_FullMethodName,
	"/orlop.v1alpha1.Cluster/Vouch":     Cluster_Vote_FullMethodName,
	"/orlop.v1alpha1.Etcd/Keep":         Etcd_TakeSnapshot_FullMethodName,
	"/orlop.v1alpha1.Etcd/List":         Etcd_ListSnapshots_FullMethodName,
	"/orlop.v1alpha1.Etcd/Remove":       Etcd_RemoveMember_FullMethodName,
	"/orlop.v1alpha1.Image/Find":        Image_Resolve_FullMethodName,
	"/orlop.v1alpha1.Image/Read":        Image_ReadBlob_FullMethodName,
	"/orlop.v1alpha1.Trust/List":        Trust_ListCertificates_FullMethodName,
	"/orlop.v1alpha1.Trust/Revocations": Trust_GetRevocations_FullMethodName,
	"/orlop.v1alpha1.Upgrade/Describe":  Upgrade_DescribeBundle_FullMethodName,
	"/orlop.v1alpha1.Upgrade/Give":      Upgrade_Download_FullMethodName,
	"/orlop.v1alpha1.Upgrade/Offer":     Upgrade_BeginUpload_FullMethodName,
	"/orlop.v1alpha1.Upgrade/Send":      Upgrade_Upload_FullMethodName,
}

// UnknownMethod is the part of an error text by which a client recognizes that apid, of this or of
// a former version, has no method with the requested name. The code is PermissionDenied.
const UnknownMethod = "this machine knows no such method"

// PresentName returns the present name of a method that is given by its present or its former name.
// It returns an unknown name unchanged.
func PresentName(method string) string {
	if present, ok := formerNames[method]; ok {
		return present
	}
	return method
}

// FormerName returns the former name of a method, or an empty string if it was never renamed.
func FormerName(method string) string {
	for former, present := range formerNames {
		if present == method {
			return former
		}
	}
	return ""
}
