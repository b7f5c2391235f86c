package api

// CountVoters returns the number of voting members and how many of them answer.
func CountVoters(all []*EtcdMember) (voters, answering int) {
	for _, m := range all {
		if m.Learner {
			continue
		}
		voters++
		if m.Problem == "" {
			answering++
		}
	}
	return voters, answering
}
